"""Every process's TOML as frozen structs: one file per process, `common.py` for the sections they share."""
