from ebft.config.method import ONLY_EBFT

__all__ = ["ONLY_EBFT"]
