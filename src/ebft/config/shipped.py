from ebft.config.recipe import RECIPES, find_recipe, shipped_names

__all__ = ["RECIPES", "find_recipe", "shipped_names"]
