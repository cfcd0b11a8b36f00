"""Documents of any length as records of one: `pack.pack`; workers import its other modules only."""
