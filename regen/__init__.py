"""regen: regenerate chat datasets through a target model, with speculation that is proven to work and to pay."""

__version__ = "0.1.0"
