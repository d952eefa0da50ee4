"""What stands around every verb: nouns that are loaded when used, global flags, and what is said of an error."""
