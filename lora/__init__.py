"""An adapter as data: parsed, checked, laid out in pages, applied."""
