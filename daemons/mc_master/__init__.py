"""mc-master: block directory, membership and the Conductor, behind one ROUTER socket. Wiring only."""
