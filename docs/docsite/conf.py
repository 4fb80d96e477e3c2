"""Settings of Sphinx. `__main__.py` runs it on the staged pages."""

from toolhub import __version__

project = "toolhub"
copyright = ""
version = release = __version__
extensions = ["myst_parser", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
smartquotes = False  # `--config` keeps its two hyphens
html_theme = "furo"  # loads nothing from elsewhere: no fonts, no scripts
html_title = "toolhub"
html_show_copyright = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["toolhub.css"]
python_display_short_literal_types = True
python_maximum_signature_line_length = 100
