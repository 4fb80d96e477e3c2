"""Sandbox backends and pool (design section 10). No backend is part of this release."""
