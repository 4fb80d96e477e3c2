"""From results to tables, pictures, README.md, and the comparison with committed results."""
