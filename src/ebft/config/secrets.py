def is_secret(name: str) -> bool:
    return name == "hub_token"
