"""The tools that each server offers, and what it told its clients first."""
