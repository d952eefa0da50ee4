"""Memory that the node lends: opened, taken over from an earlier process, added, given back."""
