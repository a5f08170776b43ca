def dish_price(prices, recipes, dish):
    