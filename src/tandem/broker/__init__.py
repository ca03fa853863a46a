"""Service Bus semantics as decisions: no sockets, no files, no clock of its own."""
