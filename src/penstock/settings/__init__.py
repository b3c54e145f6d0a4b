"""Penstock's settings: penstock.toml, the environment and flags. Nothing else in the library reads them."""
