"""What tools each server offers."""
