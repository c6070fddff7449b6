"""What a running server tells of its speculation -> findings and a verdict. Pure."""
