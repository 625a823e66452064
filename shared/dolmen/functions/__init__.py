"""What the Lambda functions share: settings from the environment, and what becomes of messages."""
