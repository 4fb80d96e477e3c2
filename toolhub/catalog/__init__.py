"""The tools that each server offers."""
