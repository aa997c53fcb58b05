"""The models a tenant may name, in OpenAI's list form."""
