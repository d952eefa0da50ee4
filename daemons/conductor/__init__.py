"""Global decisions as pure functions over a view of the cluster: who prefills, who decodes, who is turned away."""
