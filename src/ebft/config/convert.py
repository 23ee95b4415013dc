from ebft.config.settings import typed as convert

__all__ = ["convert"]
