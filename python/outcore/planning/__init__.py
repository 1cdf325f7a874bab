"""Plans: resources and time of a call, before it starts."""
