from ebft.config.settings import suggestion

__all__ = ["suggestion"]
