"""Servers that ask a model: about images and videos (vqa), recordings (transcribe), hard questions (reasoning)."""
