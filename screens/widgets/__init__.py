"""Widgets of the screens: each draws rows of its own and repaints only the cells that changed."""
