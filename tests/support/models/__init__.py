"""Models for tests: small ones of every family, in memory and in files; vocabularies; configurations, an oracle."""
