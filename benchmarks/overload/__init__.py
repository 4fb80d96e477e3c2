"""What does too much load cost, and who pays?"""
