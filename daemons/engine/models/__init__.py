"""Model families: what a `config.json` means, and the forward pass they share."""

from daemons.engine.models.family import read_decoder_config, read_geometry

__all__ = ["read_decoder_config", "read_geometry"]
