"""What comes in and goes out, as pydantic models: the one source of validation and of the OpenAPI document."""
