"""How many replicas blocks have, and where: copies ordered from cache nodes."""
