"""Several processes that serve one namespace: who serves which store, and how one reaches what another has."""
