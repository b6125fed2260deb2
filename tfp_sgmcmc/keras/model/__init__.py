"""What asks a Keras model, and changes it for a while."""
