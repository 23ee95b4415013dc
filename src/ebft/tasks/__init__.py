"""What evaluation measures on a model: generation, calibration, scores of code and translations."""
