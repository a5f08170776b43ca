def shorten(label):
	