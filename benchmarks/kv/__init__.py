"""What do hints to the model server's prefix cache give an agent?"""
