"""The version, where both the package and its rooms can read it."""

VERSION = "0.1.0"
