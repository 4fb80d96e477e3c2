"""The servers that ask a model:

about images and videos (vqa), recordings (transcribe) and hard questions (reasoning).
"""
