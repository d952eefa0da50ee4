"""The object store's client: values under names. A call is steps (verbs.py), carried out by Store or AsyncStore."""
