from ebft.config.evaluation import Profile

__all__ = ["Profile"]
