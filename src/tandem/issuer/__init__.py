"""An issuer of tokens for those who have none: clients with secrets, keys that rotate, and the two doors that SDKs ask at."""
