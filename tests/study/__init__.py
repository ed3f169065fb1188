"""Controlled studies: the engine that trains, and what it writes down."""
