from ebft.config.data import DataConfig, ModelConfig

__all__ = ["DataConfig", "ModelConfig"]
