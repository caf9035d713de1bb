"""Specs: what a person writes, from YAML text to models and page trees."""
