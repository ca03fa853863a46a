"""Tokens that somebody else issued: whom to believe, what a token says, and what that allows here."""
