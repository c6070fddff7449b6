"""One leased conversation becomes one finished row."""
