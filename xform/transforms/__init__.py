"""The built-in transformations, one module each."""

from xform import layers as _layers  # gives values their behaviour, where nothing else has loaded it
