"""Elastic jobs: not yet. Whatever is asked for here raises an error that says so."""

from rueda.core.elastic import __getattr__  # noqa: F401
