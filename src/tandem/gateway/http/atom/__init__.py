"""Administration of entities as the service's own clients speak it: ATOM documents over HTTP."""
