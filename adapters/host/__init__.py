"""The host: serves one adapter to nsa-validate, in the interpreter of whoever wrote the adapter."""
