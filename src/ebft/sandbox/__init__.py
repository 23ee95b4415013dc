"""Programs that a model wrote, run so that they can do no harm and cannot fake a pass."""
